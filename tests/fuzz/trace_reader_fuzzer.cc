// Any bytes as a trace file: read, or refused as a BadTrace. What was read is written, read again and
// compared.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

#include <boost/crc.hpp>
#include <google/protobuf/stubs/logging.h>

#include "traces/compare.h"
#include "traces/record_file.h"
#include "traces/trace_proto.h"
#include "traces/trace_times.h"

namespace cp {
namespace {

constexpr std::size_t kFileHeader = 8, kRecordHeader = 12, kChecksum = 4;

void put(std::string& bytes, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}

std::uint32_t number_at(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;) value = (value << 8) | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

void seal(std::string& bytes, std::size_t begin, std::size_t size) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data() + begin, size);
  put(bytes, begin + size, crc.checksum());
}

// The same with the right magic, lengths that fit and right checksums, which mutations never find.
std::string sealed(std::string bytes) {
  if (bytes.size() < kFileHeader) return bytes;
  bytes.replace(0, 4, "CPTR");
  put(bytes, 4, kTraceVersion);
  for (std::size_t at = kFileHeader; at + kRecordHeader + kChecksum <= bytes.size();) {
    const std::size_t most = bytes.size() - at - kRecordHeader - kChecksum;
    const std::size_t length = std::min<std::size_t>(number_at(bytes, at), most);
    put(bytes, at, static_cast<std::uint32_t>(length));
    seal(bytes, at, 8);
    seal(bytes, at + kRecordHeader, length);
    at += kRecordHeader + length + kChecksum;
  }
  return bytes;
}

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "trace_reader_fuzzer: %s\n", what);
  std::abort();
}

TraceFile read(const std::string& bytes) {
  std::istringstream in(bytes);
  return read_trace(in, "fuzzed");
}

void use(const TraceFile& file) {
  std::ostringstream out;
  write_trace(out, file.ranks);
  const TraceFile again = read(out.str());
  require(again.ranks == file.ranks, "a trace changed when it was written and read");
  const TraceComparison comparison = compare_traces(file.ranks, again.ranks);
  require(comparison.only_in_a.empty() && comparison.only_in_b.empty() && comparison.digests.empty(),
          "a trace differs from itself");
  for (const RankDivergence& found : comparison.divergences) {
    require(found.one.side.substr(0, 1) == found.other.side.substr(0, 1), "a trace differs from itself");
  }
  for (const RankTrace& trace : file.ranks) {
    try {
      times_of_records(trace.issued, trace.issued_times, trace.rank);
    } catch (const BadTrace&) {
    }
  }
}

void fuzz(const std::string& bytes) {
  try {
    use(read(bytes));
  } catch (const BadTrace&) {
  }
}

}  // namespace
}  // namespace cp

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // it says of every text that is not UTF-8 what it is
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  cp::fuzz(bytes);
  cp::fuzz(cp::sealed(bytes));
  return 0;
}
