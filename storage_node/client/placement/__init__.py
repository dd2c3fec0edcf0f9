"""Data placement: which bookies an ensemble is made of.

arranging    the arithmetic of racks: pure functions
racks        where bookies are, and the resolvers that say so
announced    where bookies are, as they say themselves
candidates   the bookies to place on, in order: health, quarantine, free space
policies     uniform or rack-aware
regions      the arithmetic of regions: pure functions
region_policy  the policy over regions, and the switches that operators have
by_settings  `Placements`: by the settings, and by a ledger's own rule
"""
