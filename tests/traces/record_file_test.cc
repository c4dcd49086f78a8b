#include "traces/record_file.h"

#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string file_of(const std::vector<std::string>& payloads, RecordKind kind = RecordKind::rank_trace) {
  std::ostringstream out;
  RecordWriter writer(out);
  for (const std::string& payload : payloads) writer.write(kind, payload);
  writer.finish();
  return out.str();
}

struct Contents {
  std::vector<std::string> payloads;
  std::optional<std::string> truncation;
};

Contents read_records(const std::string& bytes) {
  std::istringstream in(bytes);
  RecordReader reader(in, "t.cptr");
  Contents contents;
  while (const auto record = reader.next()) contents.payloads.push_back(record->payload);
  EXPECT_FALSE(reader.next().has_value());  // the end stays the end
  contents.truncation = reader.truncation();
  return contents;
}

std::string error_of_records(const std::string& bytes) {
  try {
    read_records(bytes);
  } catch (const BadTrace& error) {
    EXPECT_EQ(error.kind(), ErrorKind::bad_trace);
    return error.what();
  }
  return "(no error)";
}

std::string little_endian(std::uint32_t value) {
  std::string bytes;
  for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i));
  return bytes;
}

TEST(RecordFile, RecordsComeBackInOrder) {
  for (const std::vector<std::string>& payloads : {std::vector<std::string>{},
                                                   {""},
                                                   {"one", "", std::string("\0two", 4)},
                                                   {std::string((3 << 20) + 1, 'x'), "after"}}) {
    const Contents contents = read_records(file_of(payloads));
    EXPECT_EQ(contents.payloads, payloads);
    EXPECT_EQ(contents.truncation, std::nullopt);
  }
}

// The format, byte by byte. CRC-32 is that of zlib and Ethernet: 0xcbf43926 for "123456789".
TEST(RecordFile, HasTheLayoutOfItsHeader) {
  const std::string bytes = file_of({"123456789"});
  EXPECT_EQ(bytes.substr(0, 8), std::string("CPTR\1\0\0\0", 8));
  EXPECT_EQ(bytes.substr(8, 8), little_endian(9) + little_endian(1));
  EXPECT_EQ(bytes.substr(20, 9), "123456789");
  EXPECT_EQ(bytes.substr(29, 4), little_endian(0xcbf43926U));
}

TEST(RecordFile, AFileCutAnywhereKeepsItsWholeRecords) {
  const std::string head = file_of({}), bytes = file_of({"first", "", "third"});
  const std::size_t ends[] = {8 + 16 + 5, 8 + 16 + 5 + 16, 8 + 16 + 5 + 16 + 16 + 5};
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const Contents contents = read_records(bytes.substr(0, size));
    std::vector<std::string> expected;
    if (size >= ends[0]) expected.emplace_back("first");
    if (size >= ends[1]) expected.emplace_back("");
    if (size >= ends[2]) expected.emplace_back("third");
    EXPECT_EQ(contents.payloads, expected) << size;
    ASSERT_TRUE(contents.truncation.has_value()) << size;
    EXPECT_THAT(*contents.truncation,
                AllOf(HasSubstr("t.cptr is cut off at byte " + std::to_string(size)),
                      HasSubstr("after " + std::to_string(expected.size()) + " whole records")));
  }
}

TEST(RecordFile, EveryChangedBitIsNoticed) {
  const std::string bytes = file_of({"first", "", "third"});
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      EXPECT_THAT(error_of_records(changed), HasSubstr("t.cptr, record "))
          << "byte " << at << ", bit " << bit;
    }
  }
}

TEST(RecordFile, DamageIsNamedWithItsPlace) {
  const std::string bytes = file_of({"first", "second"});
  const auto changed = [&](std::size_t at) {
    std::string copy = bytes;
    copy[at] = static_cast<char>(copy[at] ^ 1);
    return copy;
  };
  EXPECT_THAT(error_of_records(changed(0)), HasSubstr("at byte 0: the file does not begin with CPTR"));
  EXPECT_THAT(error_of_records("hello"), HasSubstr("not a trace"));
  EXPECT_THAT(error_of_records(std::string("CPTR\2\0\0\0", 8)),
              HasSubstr("version 2, but this program reads version 1"));
  EXPECT_THAT(error_of_records(changed(8)),
              HasSubstr("record 0 at byte 8: the checksum of the record's header differs"));
  EXPECT_THAT(error_of_records(changed(29 + 12)),
              HasSubstr("record 1 at byte 29: the checksum of the record's payload differs"));
  EXPECT_THAT(error_of_records(bytes + "x"), HasSubstr("bytes follow the end record"));
}

// Dropping a record leaves every checksum right.
TEST(RecordFile, ALostRecordIsNoticed) {
  const std::string bytes = file_of({"first", "second"});
  EXPECT_THAT(error_of_records(bytes.substr(0, 8) + bytes.substr(29)),
              HasSubstr("the end record counts 2 records, but 1 were read"));
}

// A header with a right checksum decides nothing but how much is read at most.
TEST(RecordFile, LengthsAreCheckedBeforeMemoryIsAskedFor) {
  const auto record_of = [](std::uint32_t length) {
    // The checksum as the writer computes it: from a file whose payload is this header.
    const std::string header = little_endian(length) + little_endian(1);
    const std::string file = file_of({header});
    return std::string("CPTR\1\0\0\0", 8) + header + file.substr(8 + 12 + 8, 4);
  };
  EXPECT_THAT(error_of_records(record_of(0xffffffffU)),
              HasSubstr("the record has 4294967295 bytes, more than the 268435456 that are read"));
  EXPECT_THAT(error_of_records(record_of((256U << 20) + 1)), HasSubstr("more than the 268435456"));
  const Contents contents = read_records(record_of(256U << 20));
  EXPECT_THAT(contents.truncation.value_or(""), HasSubstr("at byte 20, in the payload"));
}

TEST(RecordFile, RecordsThatAreTooLongAreNotWritten) {
  std::ostringstream out;
  RecordWriter writer(out);
  const std::string payload(kMaxRecordBytes + 1, '\0');
  EXPECT_THROW(writer.write(RecordKind::rank_trace, payload), InvalidInput);
}

TEST(RecordFile, UnknownKindsAreHandedOutAsTheyAre) {
  std::istringstream in(file_of({"later"}, static_cast<RecordKind>(77)));
  RecordReader reader(in, "t.cptr");
  const auto record = reader.next();
  ASSERT_TRUE(record.has_value());
  EXPECT_EQ(static_cast<std::uint32_t>(record->kind), 77U);
  EXPECT_EQ(record->offset, 8U);
}

TEST(RecordFile, AStreamThatFailsIsAnError) {
  std::ostringstream out;
  RecordWriter writer(out);
  out.setstate(std::ios::badbit);
  EXPECT_THROW(writer.write(RecordKind::rank_trace, "x"), BadTrace);
  EXPECT_THROW(writer.finish(), BadTrace);
}

}  // namespace
}  // namespace cp
