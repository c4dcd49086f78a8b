#include "traces/record_file.h"

#include <algorithm>
#include <istream>
#include <ostream>
#include <utility>

#include <boost/crc.hpp>

#include "traces/trace.pb.h"

namespace cp {
namespace {

constexpr std::string_view kMagic = "CPTR";
// Sizes that follow from the format (record_file.h): 4 bytes of magic and 4 of version; three numbers of 4
// bytes.
constexpr std::size_t kFileHeaderBytes = 8;
constexpr std::size_t kRecordHeaderBytes = 12;

std::uint32_t crc32(std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

std::string little_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>((value >> shift) & 0xff);
  return bytes;
}

std::uint32_t number_at(std::string_view bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

}  // namespace

RecordWriter::RecordWriter(std::ostream& out) : out_(out) { out_ << kMagic << little_endian(kTraceVersion); }

void RecordWriter::write(RecordKind kind, std::string_view payload) {
  write_record(kind, payload);
  ++count_;
}

void RecordWriter::finish() {
  proto::TraceEnd end;
  end.set_records(count_);
  write_record(RecordKind::end, end.SerializeAsString());
  if (!out_.flush()) throw BadTrace("cannot write the end of the trace; is the disk full?");
}

void RecordWriter::write_record(RecordKind kind, std::string_view payload) {
  if (payload.size() > kMaxRecordBytes) {
    throw InvalidInput(str("a trace record has ", payload.size(), " bytes, but at most ", kMaxRecordBytes,
                           " fit; split it"));
  }
  const std::string header = little_endian(static_cast<std::uint32_t>(payload.size())) +
                             little_endian(static_cast<std::uint32_t>(kind));
  out_ << header << little_endian(crc32(header)) << payload << little_endian(crc32(payload));
  if (!out_)
    throw BadTrace(
        str("cannot write trace record ", count_, " of ", payload.size(), " bytes; is the disk full?"));
}

RecordReader::RecordReader(std::istream& in, std::string name) : in_(in), name_(std::move(name)) {
  std::string header;
  const bool whole = read(header, kFileHeaderBytes);
  const std::string_view magic = std::string_view(header).substr(0, kMagic.size());
  if (magic != kMagic.substr(0, magic.size()))
    fail(0, "the file does not begin with CPTR, so it is not a trace");
  if (!whole) {
    cut_off("in its first 8 bytes");
    return;
  }
  const std::uint32_t version = number_at(header, kMagic.size());
  if (version != kTraceVersion) {
    fail(kMagic.size(),
         str("the trace has version ", version, ", but this program reads version ", kTraceVersion));
  }
}

std::optional<Record> RecordReader::next() {
  if (done_) return std::nullopt;
  Record record;
  record.offset = offset_;
  std::string header, checksum;
  if (!read(header, kRecordHeaderBytes))
    return cut_off(header.empty() ? "before its end record" : "in the header");
  if (number_at(header, 8) != crc32(std::string_view(header).substr(0, 8))) {
    fail(record.offset, "the checksum of the record's header differs");
  }
  const std::size_t length = number_at(header, 0);
  record.kind = static_cast<RecordKind>(number_at(header, 4));
  if (length > kMaxRecordBytes) {
    fail(record.offset,
         str("the record has ", length, " bytes, more than the ", kMaxRecordBytes, " that are read"));
  }
  if (!read(record.payload, length) || !read(checksum, 4)) return cut_off("in the payload");
  if (number_at(checksum, 0) != crc32(record.payload))
    fail(record.offset, "the checksum of the record's payload differs");
  if (record.kind == RecordKind::end) {
    check_end(record);
    done_ = true;
    return std::nullopt;
  }
  ++count_;
  return record;
}

// In pieces, so that memory grows with what is there, not with what a header promises.
bool RecordReader::read(std::string& bytes, std::size_t size) {
  // Chosen: most records are of about this size (kRecordBytes of trace_proto.cc) and are read in one piece.
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  bytes.clear();
  while (bytes.size() < size) {
    const std::size_t begin = bytes.size();
    bytes.resize(std::min(size, begin + kPiece));
    in_.read(bytes.data() + begin, static_cast<std::streamsize>(bytes.size() - begin));
    const auto got = static_cast<std::size_t>(in_.gcount());
    offset_ += got;
    if (in_.bad()) fail(offset_, "the file cannot be read");
    if (begin + got < bytes.size()) {
      bytes.resize(begin + got);
      return false;
    }
  }
  return true;
}

void RecordReader::check_end(const Record& record) {
  proto::TraceEnd end;
  if (!end.ParseFromString(record.payload)) fail(record.offset, "the end record cannot be read");
  if (end.records() != count_) {
    fail(record.offset, str("the end record counts ", end.records(), " records, but ", count_, " were read"));
  }
  if (in_.peek() != std::istream::traits_type::eof()) fail(offset_, "bytes follow the end record");
}

std::optional<Record> RecordReader::cut_off(std::string_view where) {
  done_ = true;
  truncation_ =
      str(name_, " is cut off at byte ", offset_, ", ", where, ", after ", count_, " whole records");
  return std::nullopt;
}

void RecordReader::fail(std::uint64_t offset, std::string_view what) const {
  throw BadTrace(str(name_, ", record ", count_, " at byte ", offset, ": ", what));
}

}  // namespace cp
