#include "traces/read_text.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include <google/protobuf/descriptor.h>

#include "shared/base/error.h"

namespace cp {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

// Depth of braces, of known fields or not. Chosen: far above what our messages need, and 32 levels of the
// parser's recursion are safe on any stack.
constexpr int kMaxDepth = 32;
// Chosen: 16 MiB, where a file that people write has some thousands of bytes. It turns a wrong path (a
// checkpoint, a device) into an error.
constexpr std::size_t kMaxBytes = 1 << 24;

void blank_line(std::string& text, int line) {
  std::size_t begin = 0;
  for (int i = 0; i < line; ++i) begin = text.find('\n', begin) + 1;
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  std::fill(text.begin() + static_cast<std::ptrdiff_t>(begin),
            text.begin() + static_cast<std::ptrdiff_t>(end), ' ');
}

// Parses what can be parsed; `errors` gets the rest.
void parse(std::string_view text, TextErrors& errors, Message& message, TextLocations& locations) {
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.AllowUnknownField(true);
  parser.SetRecursionLimit(kMaxDepth);
  parser.WriteLocationsTo(&locations);
  std::string rest(text);
  if (parser.ParseFromString(rest, &message)) return;
  // Once more without the line at fault; only the errors count now.
  parser.WriteLocationsTo(nullptr);
  const std::unique_ptr<Message> ignored(message.New());
  for (int line = errors.take_skippable_line(); line >= 0; line = errors.take_skippable_line()) {
    blank_line(rest, line);
    if (parser.ParseFromString(rest, ignored.get())) return;
  }
}

// Protobuf lets any number stand for an enumerator.
void check_enumerators(const Message& message, const TextLocations& locations, TextErrors& errors) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_map()) continue;  // in the order of keys, which is not the text's
    const bool repeated = field->is_repeated();
    for (int i = repeated ? 0 : -1; i < (repeated ? reflection.FieldSize(message, field) : 0); ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        const TextLocations* nested = locations.GetTreeForNested(field, i);
        if (nested == nullptr) continue;
        check_enumerators(repeated ? reflection.GetRepeatedMessage(message, field, i)
                                   : reflection.GetMessage(message, field),
                          *nested, errors);
      }
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM) continue;
      const int number = repeated ? reflection.GetRepeatedEnumValue(message, field, i)
                                  : reflection.GetEnumValue(message, field);
      if (field->enum_type()->FindValueByNumber(number) != nullptr) continue;
      errors.add(locations.GetLocation(field, i), str("unknown ", field->name(), " ", number, "; use one of ",
                                                      join(enumerators(*field->enum_type()), ", ")));
    }
  }
}

}  // namespace

void read_text(std::string_view text, std::string_view filename, std::string_view kind, Message& message,
               const TextCheck& check) {
  if (text.size() > kMaxBytes) {
    throw InvalidInput(str(filename, ": the file has ", text.size(), " bytes, but a ", kind, " has at most ",
                           kMaxBytes, "; is it the right file?"));
  }
  TextErrors errors(text, filename, *message.GetDescriptor());
  TextLocations locations;
  parse(text, errors, message, locations);
  errors.raise();
  check_enumerators(message, locations, errors);
  if (check) check(locations, errors);
  errors.raise();
}

std::string read_text_file(const std::string& path, std::string_view kind) {
  std::ifstream in(path, std::ios::binary);
  // No more than is read of any text, whatever the file's size says: that of /dev/zero is 0, and a pipe has
  // none.
  std::string text;
  std::array<char, 1 << 16> part;
  while (text.size() <= kMaxBytes && in.read(part.data(), part.size()).gcount() > 0)
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
  if (!in.is_open() || in.bad())
    throw InvalidInput(str("cannot read the ", kind, " ", path, ": ", std::strerror(errno)));
  if (text.size() > kMaxBytes)
    throw InvalidInput(str(path, ": the file is too large: a ", kind, " has at most ", kMaxBytes,
                           " bytes; is it the right file?"));
  return text;
}

}  // namespace cp
