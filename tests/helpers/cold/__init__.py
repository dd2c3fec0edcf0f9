"""What tests of cold storage share: places for objects, the servers they are at, and a proxy that disturbs these."""
