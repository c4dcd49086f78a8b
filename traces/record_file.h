// The framing of trace files: a header, then records that each carry a kind and checksums.
//
//   file    "CPTR", version (u32), record..., end record
//   record  length (u32), kind (u32), CRC-32 of these 8 bytes (u32), payload (length bytes), CRC-32 of the
//           payload (u32)
//
// All numbers are little-endian. The header of a record has a checksum of its own, so that a changed length
// is told from a file that was cut off, and never decides how much memory is asked for. The end record holds
// a TraceEnd; a file without one was cut off. A kind that a reader does not know is checked and skipped: new
// kinds may be added within a version.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "shared/base/error.h"

namespace cp {

using BadTrace = ErrorOf<ErrorKind::bad_trace>;  // not a trace file, or damaged

constexpr std::uint32_t kTraceVersion = 1;
constexpr std::size_t kMaxRecordBytes = std::size_t{256} << 20;

// Numbers in files: never reused.
enum class RecordKind : std::uint32_t {
  rank_trace = 1,  // proto::RankTrace
  end = 2,         // proto::TraceEnd
};

struct Record {
  RecordKind kind = RecordKind::end;
  std::string payload;
  std::uint64_t offset = 0;  // of its header in the file
};

// Writes the header at once. The stream must be binary and outlive the writer.
class RecordWriter {
 public:
  explicit RecordWriter(std::ostream& out);
  // Throws InvalidInput when the payload exceeds kMaxRecordBytes, BadTrace when the stream fails (a full
  // disk).
  void write(RecordKind kind, std::string_view payload);
  // Writes the end record and flushes; without it readers take the file for cut off.
  void finish();

 private:
  void write_record(RecordKind kind, std::string_view payload);

  std::ostream& out_;
  std::uint64_t count_ = 0;
};

// Reads record by record; memory is at most that of the largest record.
class RecordReader {
 public:
  // Throws BadTrace for what is no trace file, or one of another version. `name` is for messages.
  RecordReader(std::istream& in, std::string name);

  // The next record, of whatever kind; nothing after the end record, and where the file is cut off. Throws
  // BadTrace when the record is damaged: a checksum differs, it is too long, the end record counts other
  // records, bytes follow the end.
  std::optional<Record> next();

  // Once next() has returned nothing: where the file was cut off, in words; nothing when it was whole.
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
