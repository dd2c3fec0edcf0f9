"""Looking after a namespace: what its logs and ledgers are, whether they agree, and mending them."""
