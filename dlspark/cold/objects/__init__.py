"""Object stores, as cold storage needs them: whole files that never change, and ranges of them."""
