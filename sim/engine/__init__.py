from sim.compiled import attach

attach("sim.engine", __path__)
