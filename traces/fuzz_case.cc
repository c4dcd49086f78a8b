#include "traces/fuzz_case.h"

#include <google/protobuf/text_format.h>

#include "shared/base/error.h"
#include "traces/read_text.h"

namespace cp {
namespace {

using google::protobuf::TextFormat;

std::string printed(const proto::FuzzCase& fuzz_case) {
  std::string text;
  TextFormat::Printer printer;
  CP_INVARIANT(printer.PrintToString(fuzz_case, &text), "a case of ", fuzz_case.ByteSizeLong(), " bytes");
  return text;
}

// "# line" for each line.
std::string commented(std::string_view text) {
  std::string result = "# ";
  for (const char c : text) result += c == '\n' ? std::string("\n# ") : std::string(1, c);
  return result + "\n";
}

}  // namespace

proto::FuzzCase read_case_text(std::string_view text, std::string_view filename) {
  proto::FuzzCase fuzz_case;
  read_text(text, filename, "case", fuzz_case, [&](const TextLocations&, TextErrors& errors) {
    if (fuzz_case.job_case() != proto::FuzzCase::JOB_NOT_SET) return;
    errors.add(TextFormat::ParseLocation(),
               "the case asks for nothing; add: redistribute { ... }, attention { ... } or model { ... }");
  });
  return fuzz_case;
}

proto::FuzzCase read_case_file(const std::string& path) {
  return read_case_text(read_text_file(path, "case"), path);
}

std::string write_case_text(const proto::FuzzCase& fuzz_case) {
  std::string text = "# proto-file: traces/fuzz_case.proto\n# proto-message: cp.proto.FuzzCase\n\n";
  if (fuzz_case.has_finding())
    text += commented(str(fuzz_case.finding().property(), ": ", fuzz_case.finding().message())) + "\n";
  return text + printed(fuzz_case);
}

Digest digest(const proto::FuzzCase& fuzz_case) {
  proto::FuzzCase bare = fuzz_case;
  bare.clear_finding();
  return Hasher().add(printed(bare)).digest();
}

}  // namespace cp
