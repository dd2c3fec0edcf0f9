"""A cold file with pyarrow alone: python read_cold_file.py FILE [records]. Needs no cluster and nothing of dlspark."""

import hashlib
import json
import sys
import zlib

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if len(sys.argv) < 2:
    sys.exit("python read_cold_file.py FILE [records]: FILE is a .parquet file of a log's cold storage")
path, shown = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
data = pa.memory_map(path).read_buffer()
view = memoryview(data)
file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
about = json.loads(file.metadata.metadata[b"dlspark.cold"])
seal = file.metadata.metadata[b"dlspark.cold.seal"]

# The seal: the footer's own SHA-256 (with its last 64 digits as zeros), then a CRC-32 for each column's chunk.
footer = bytes(view[-8 - int.from_bytes(view[-8:-4], "little") : -8])
at = footer.rindex(seal) + len(seal)
unsealed = footer[: at - 64] + b"0" * 64 + footer[at:]
assert hashlib.sha256(unsealed).hexdigest().encode() == seal[-64:], "the footer is damaged"
for group in range(file.num_row_groups):
    for leaf in range(file.metadata.num_columns):
        chunk = file.metadata.row_group(group).column(leaf)
        start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
        crc = seal[6 + 8 * (group * file.metadata.num_columns + leaf) :][:8]
        found = zlib.crc32(view[start : start + chunk.total_compressed_size])
        assert found == int(crc, 16), f"{chunk.path_in_schema} of row group {group} is damaged"

print(f"{about['log']}: {about['records']} records of {len(about['segments'])} segments, {about['rows']} rows")
columns = [hashlib.sha256() for _ in range(8)]
complete = True
for group in range(file.num_row_groups):
    rows = file.read_row_group(group).combine_chunks()
    name = next(one.name for one in rows.schema if one.metadata[b"PARQUET:field_id"] == b"1000010")
    first = pc.less_equal(pc.struct_field(rows["_log"], "row"), 0)  # further rows of an Arrow record are no records
    records = rows.filter(first).combine_chunks()
    log = records["_log"].combine_chunks()
    value = records[name].combine_chunks()
    complete = complete and not pc.any(pc.greater_equal(log.field("schema"), 0)).as_py()
    lengths = pc.fill_null(pc.binary_length(value), -1)  # null here: it was erased
    flags = pc.bit_wise_and(log.field("flags"), 0xFFFF)
    numbers = [log.field(one) for one in ("segment", "entry", "slot", "sequence_id", "transaction_id")]
    for column, array in zip(columns, [*numbers, flags, lengths], strict=False):
        column.update(array.cast(pa.int64()).buffers()[1].slice(0, 8 * len(array)))
    columns[7].update(b"".join(value.drop_null().to_pylist()))
    for row in records.slice(0, shown).to_pylist():
        where = row.pop("_log")
        print(f"{where['segment']}:{where['entry']}:{where['slot']} {where['transaction_id']} {row}")
    shown = max(0, shown - len(records))
digest = hashlib.sha256(b"".join(one.digest() for one in columns)).hexdigest()
print(
    f"digest {digest}" if complete else "some records are in their typed columns alone: their digest needs the encoder"
)
assert not complete or digest == about["digest"], "the records are not those that were written"
