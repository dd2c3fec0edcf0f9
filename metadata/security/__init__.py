"""Who is at the other end, and what proves it: certificates, their stores and revocation, identities, secrets.

identity       `TlsIdentity`: certificate, key, authorities and lists of one process, read again when they change
identity_files the files of one, read whole and handed to OpenSSL from memory
ciphers        which versions of TLS and which ciphers are used
certificates   what a certificate and a revocation list say; PEM
der            a strict reader of their encoding
principals     `Principal`: who a peer has proved to be, and until when; how a certificate is mapped to one
authority      one's own authority: issues, renews and revokes; `identity_folders` is how it writes
stores         PKCS #12 and JKS, as Java has them
settings       the one switch, and the keys of TLS
secrets        `Secret`: a text that shows itself nowhere
listening      where a server may listen without security
errors         what is wrong with our own files, or with a peer
restrictions   `Restrictions`: what a proof itself leaves of its holder's rights
proofs         what a proof that is not good ends in
audit          `AuditTrail`: what was allowed and refused, as lines in a file
rights         `RuleBook`: what a principal may do with a log, and which rule says so
"""
