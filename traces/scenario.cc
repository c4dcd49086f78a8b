#include "traces/scenario.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <sstream>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include "shared/base/error.h"
#include "traces/text_errors.h"

namespace cp {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::TextFormat;
using Locations = TextFormat::ParseInfoTree;

constexpr int kMaxDepth = 32;               // of braces, known or not
constexpr std::size_t kMaxBytes = 1 << 24;  // a scenario that people write has a few hundred

void blank_line(std::string& text, int line) {
  std::size_t begin = 0;
  for (int i = 0; i < line; ++i) begin = text.find('\n', begin) + 1;
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(begin),
            text.begin() + static_cast<std::ptrdiff_t>(end), ' ');
}

// Parses what can be parsed; `errors` gets the rest.
void parse(std::string_view text, TextErrors& errors, proto::Scenario& scenario, Locations& locations) {
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(kMaxDepth);
  parser.WriteLocationsTo(&locations);
  std::string rest(text);
  if (parser.ParseFromString(rest, &scenario)) return;
  // Once more without the line at fault; only the errors count now.
  parser.WriteLocationsTo(nullptr);
  proto::Scenario ignored;
  for (int line = errors.take_skippable_line(); line >= 0; line = errors.take_skippable_line()) {
    blank_line(rest, line);
    if (parser.ParseFromString(rest, &ignored)) return;
  }
}

// Protobuf lets any number stand for an enumerator.
void check_enumerators(const Message& message, const Locations& locations, TextErrors& errors) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_repeated()) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (const Locations* nested = locations.GetTreeForNested(field, -1)) {
        check_enumerators(message.GetReflection()->GetMessage(message, field), *nested, errors);
      }
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) continue;
    const int number = message.GetReflection()->GetEnumValue(message, field);
    if (field->enum_type()->FindValueByNumber(number) != nullptr) continue;
    errors.add(locations.GetLocation(field, -1), str("unknown ", field->name(), " ", number, "; use one of ",
                                                     join(enumerators(*field->enum_type()), ", ")));
  }
}

// The fields without which a job means nothing, as they would be written.
std::vector<std::string> missing_fields(const proto::Scenario& scenario) {
  std::vector<std::string> missing;
  const auto require = [&](bool given, std::string_view example) {
    if (!given) missing.emplace_back(example);
  };
  if (scenario.has_redistribute()) {
    const proto::Redistribute& job = scenario.redistribute();
    require(!job.mesh().empty(), "mesh: \"dp=2,cp=4\"");
    require(!job.shape().empty(), "shape: \"1024x1024\"");
    require(!job.from().empty(), "from: \"S(0),R\"");
    require(!job.to().empty(), "to: \"R,S(0)\"");
  } else {
    require(!scenario.run().mesh().empty(), "mesh: \"cp=8\"");
    require(scenario.run().seq_len() != 0, "seq_len: 4096");
  }
  return missing;
}

void check_required(const proto::Scenario& scenario, const Locations& locations, TextErrors& errors) {
  if (scenario.job_case() == proto::Scenario::JOB_NOT_SET) {
    return errors.add(TextFormat::ParseLocation(),
                      "the scenario asks for nothing; add: redistribute { ... } or run { ... }");
  }
  const std::vector<std::string> missing = missing_fields(scenario);
  if (missing.empty()) return;
  const FieldDescriptor* job = proto::Scenario::descriptor()->FindFieldByNumber(scenario.job_case());
  errors.add(locations.GetLocation(job, -1),
             str(job->name(), " lacks what it ", scenario.has_redistribute() ? "moves" : "computes",
                 "; add such as ", join(missing, ", ")));
}

}  // namespace

proto::Scenario read_scenario_text(std::string_view text, std::string_view filename) {
  if (text.size() > kMaxBytes) {
    throw InvalidInput(
        str(filename, ": ", text.size(), " bytes are no scenario; at most ", kMaxBytes, " are read"));
  }
  TextErrors errors(text, filename, *proto::Scenario::descriptor());
  proto::Scenario scenario;
  Locations locations;
  parse(text, errors, scenario, locations);
  errors.raise();
  check_enumerators(scenario, locations, errors);
  check_required(scenario, locations, errors);
  errors.raise();
  return scenario;
}

proto::Scenario read_scenario_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad()) throw InvalidInput(str("cannot read the scenario ", path));
  return read_scenario_text(text.str(), path);
}

std::string write_scenario_text(const proto::Scenario& scenario) {
  std::string text;
  TextFormat::Printer printer;
  CP_INVARIANT(printer.PrintToString(scenario, &text), "a scenario of ", scenario.ByteSizeLong(), " bytes");
  return "# proto-file: traces/scenario.proto\n# proto-message: cp.proto.Scenario\n\n" + text;
}

}  // namespace cp
