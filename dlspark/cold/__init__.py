"""Cold storage: carries the past of a log into columnar files that any engine reads, and works on what lies there.

    moving        copies segments into files, and takes hot copies and old files away
    lake          the same files as tables of other engines
    restoring     files back into ledgers, or a log rebuilt from its files alone
    redaction     erases records

What a file is, and how readers go on into it, lies below the core's readers (`dlspark.core.cold`); where files lie is
`dlspark.objects`.
"""
