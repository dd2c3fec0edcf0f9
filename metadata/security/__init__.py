"""Who is at the other end, and what proves it: certificates, their stores and revocation, identities, secrets.

principals     `Principal`: who a peer has proved to be, and until when
secrets        `Secret`: a text that shows itself nowhere
listening      where a server may listen without security
"""
