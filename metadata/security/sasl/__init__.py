"""SASL: pure machines that prove to a server who a client is, and to a client that the server knows it.

machine        what a mechanism is; `SaslError`
digest_md5     DIGEST-MD5 (RFC 2831), for Java's sake
"""
