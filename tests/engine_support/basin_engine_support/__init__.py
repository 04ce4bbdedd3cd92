"""Test-only help for SGLang on a machine without a GPU; nothing of it is needed, or wanted, on a GPU node."""
