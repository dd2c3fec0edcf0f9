"""SASL: pure machines that prove to a server who a client is, and to a client that the server knows it.

machine        what a mechanism is; `SaslError`
digest_md5     DIGEST-MD5 (RFC 2831), for Java's sake
jaas           Java's login configuration: names, passwords, Kerberos keys
scram          SCRAM-SHA-256 (RFC 7677), for ours; extra `security`
binding        channel bindings: a proof that holds on one connection only
kerberos       GSSAPI (RFC 4752); extra `kerberos`
credentials    the file of SCRAM's users
authenticators who may enter, from which file, by which machine
settings       upstream's keys, and what is made of them
"""
