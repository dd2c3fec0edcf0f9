"""Who may come to a proxy: bearer tokens, and what is asked of every connection (docs/serving/security.md).

authentication  `Authentication`: what clients must prove, and whether it still holds
credentials     what a client shows proxies
settings        `ProxySecurity`: the settings of a proxy about all this
token_claims    what a token says, read strictly; token_keys: the keys that vouch for it, and where they come from
tokens          `TokenVerifier`: a token to who it proves, or why it does not
token_issuing   keys and short-lived tokens, for operators and for Spark's driver
"""
