from sim.compiled import attach

attach("sim", __path__)
