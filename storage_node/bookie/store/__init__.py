"""The entries that a node holds, and how much is left of them after a crash.

storage       `Storage`: adds, fences, LACs and reads, decided in one step; start from what is on disk
contents      the ledgers, how much of each log is live, and what no checkpoint has covered yet
waiters       the long polls that wait for a ledger's LAC to move on
entry_logs    the append-only files that hold all entries, and the memory in front of them
index         where each entry of a ledger lies in the entry logs, and the sidecar files
checkpoints   what makes the journal's older part unnecessary
opening       at start: the newest checkpoint, and the index of every log
collection    ledgers that metadata does not know any more are deleted
removal       the files of logs that are needed no more go a step at a time
compaction    the live entries of a log that is mostly dead are copied to another one
"""
