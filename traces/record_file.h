// The framing of trace files: a header, then records, each of which has a kind and checksums.
//
//   file    "CPTR", version (u32), record..., end record
//   record  length (u32), kind (u32), CRC-32 of these 8 bytes (u32), payload (length bytes), CRC-32 of the
//           payload (u32)
//
// All numbers are little-endian. The header of a record has a checksum of its own for two reasons: a length
// that was damaged can be told from a file that was cut off, and a damaged length never decides how much
// memory is asked for. The end record holds a TraceEnd; a file without one was cut off. A reader checks and
// skips records of a kind that it does not know, so new kinds may be added within a version.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace cp {

using BadTrace = ErrorOf<ErrorKind::bad_trace>;  // the file is no trace file, or damaged

// The version that this program writes, and the only one that it reads.
constexpr std::uint32_t kTraceVersion = 1;
// Chosen: 256 times the size at which a writer closes a record (kRecordBytes of trace_proto.cc), so that no
// writer meets it, and far below the 2 GiB at which protobuf ends. A reader never holds more than this.
constexpr std::size_t kMaxRecordBytes = std::size_t{256} << 20;

// Numbers in files: never reused.
enum class RecordKind : std::uint32_t {
  rank_trace = 1,  // proto::RankTrace
  end = 2,         // proto::TraceEnd
};

struct Record {
  RecordKind kind = RecordKind::end;
  std::string payload;
  std::uint64_t offset = 0;  // of the record's header in the file, in bytes
};

// Writes the file's header at once. The stream must be binary and outlive the writer.
class RecordWriter {
 public:
  explicit RecordWriter(std::ostream& out);
  // Throws InvalidInput if the payload is larger than kMaxRecordBytes, and BadTrace if the stream fails, as
  // on a full disk.
  void write(RecordKind kind, std::string_view payload);
  // Writes the end record and flushes. Without it, readers report that the file was cut off.
  void finish();

 private:
  void write_record(RecordKind kind, std::string_view payload);

  std::ostream& out_;
  std::uint64_t count_ = 0;
};

// Reads one record at a time, and takes no more memory than the largest record.
class RecordReader {
 public:
  // Throws BadTrace if this is no trace file, or one of another version. `name` is for messages.
  RecordReader(std::istream& in, std::string name);

  // The next record, of any kind; nothing behind the end record, and at the place where the file is cut off.
  // Throws BadTrace if the record is damaged: a checksum differs, it is too long, the end record counts
  // another number of records, or bytes follow the end.
  std::optional<Record> next();

  // Valid once next() has returned nothing: says in words where the file was cut off; nothing if it is whole.
  const std::optional<std::string>& truncation() const { return truncation_; }

 private:
  bool read(std::string& bytes, std::size_t size);
  void check_end(const Record& record);
  std::optional<Record> cut_off(std::string_view where);
  [[noreturn]] void fail(std::uint64_t offset, std::string_view what) const;

  std::istream& in_;
  std::string name_;
  std::uint64_t offset_ = 0;
  std::uint64_t count_ = 0;
  bool done_ = false;
  std::optional<std::string> truncation_;
};

}  // namespace cp
