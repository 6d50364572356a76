"""The policies: one contract (:mod:`.base`), the transformers policy (:mod:`.transformers_policy`) behind it."""
