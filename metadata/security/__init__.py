"""Who is at the other end, and what proves it: certificates, their stores and revocation, identities, secrets.

principals     `Principal`: who a peer has proved to be, and until when
secrets        `Secret`: a text that shows itself nowhere
audit          `AuditTrail`: what was allowed and refused, as lines in a file
rights         `RuleBook`: what a principal may do with a log, and which rule says so
"""
