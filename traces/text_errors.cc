#include "traces/text_errors.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include <google/protobuf/descriptor.h>

#include "shared/base/error.h"
#include "shared/base/nearest.h"

namespace cp {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;

// What stands in the message between `before` and the next quote after it.
std::optional<std::string> quoted_after(const std::string& message, std::string_view before) {
  const std::size_t at = message.find(before);
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + before.size(), end = message.find('"', begin);
  return end == std::string::npos ? std::nullopt : std::optional(message.substr(begin, end - begin));
}

// An error about a word of the text: the word, and the message in our words.
struct WordError {
  std::string word, message;
};

std::optional<WordError> unknown_field(const std::string& message) {
  const auto type_name = quoted_after(message, "Message type \""),
             name = quoted_after(message, "has no field named \"");
  if (!type_name || !name) return std::nullopt;
  const Descriptor* type = DescriptorPool::generated_pool()->FindMessageTypeByName(*type_name);
  if (type == nullptr || type->field_count() == 0) return std::nullopt;
  std::vector<std::string_view> names;
  for (int i = 0; i < type->field_count(); ++i) names.push_back(type->field(i)->name());
  return WordError{*name, str("unknown field '", *name, "' of ", type->name(), "; the nearest one is '",
                              nearest_name(*name, names), "'")};
}

// The field of that name and an enumeration's type, in the message or those in it.
const FieldDescriptor* find_enum_field(const Descriptor& type, const std::string& name) {
  const FieldDescriptor* own = type.FindFieldByName(name);
  if (own != nullptr && own->enum_type() != nullptr) return own;
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->message_type() == nullptr) continue;
    if (const FieldDescriptor* inner = find_enum_field(*type.field(i)->message_type(), name)) return inner;
  }
  return nullptr;
}

std::optional<WordError> unknown_enumerator(const std::string& message, const Descriptor& root) {
  const auto word = quoted_after(message, "Unknown enumeration value of \""),
             name = quoted_after(message, "for field \"");
  if (!word || !name) return std::nullopt;
  const FieldDescriptor* field = find_enum_field(root, *name);
  if (field == nullptr) return std::nullopt;
  return WordError{*word, str("unknown ", *name, " '", *word, "'; use one of ",
                              join(enumerators(*field->enum_type()), ", "))};
}

}  // namespace

std::vector<std::string_view> enumerators(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string_view> names;
  for (int i = 0; i < type.value_count(); ++i) {
    const std::string_view name = type.value(i)->name();
    if (!name.ends_with("_unspecified")) names.push_back(name);
  }
  return names;
}

TextErrors::TextErrors(std::string_view text, std::string_view filename, const Descriptor& root)
    : filename_(filename), root_(root) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines_.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

void TextErrors::AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) {
  const std::optional<WordError> word = unknown_enumerator(message, root_);
  const Place at = word ? word_before(place(line, column), word->word) : place(line, column);
  // Of several on a line the first in place says why; the others are consequences, and the tokenizer's come
  // early.
  const auto [stop, is_first] = stops_.try_emplace(at.first, at);
  if (!is_first) {
    if (at >= stop->second) return;
    errors_.erase(std::exchange(stop->second, at));
  }
  insert(at, word ? word->message : message);
  // Between the colon and the end of the line there is the value and nothing else, as people write it.
  const std::string_view text = line_text(at.first);
  const bool in_value =
      text.substr(0, static_cast<std::size_t>(at.second)).find(':') != std::string_view::npos;
  skippable_line_ = in_value && text.find_first_of("{}<>") == std::string_view::npos ? at.first : -1;
}

void TextErrors::AddWarning(int line, google::protobuf::io::ColumnNumber column, const std::string& message) {
  const Place at = place(line, column);
  const std::optional<WordError> word = unknown_field(message);
  word ? insert(word_before(at, word->word), word->message) : insert(at, message);
}

void TextErrors::add(google::protobuf::TextFormat::ParseLocation at, std::string message) {
  insert(place(at.line, at.column), std::move(message));
}

void TextErrors::insert(Place at, std::string message) {
  std::string& all = errors_[at];
  if (all.empty()) all = std::move(message);  // a second parse finds the same again
}

TextErrors::Place TextErrors::word_before(Place at, std::string_view word) const {
  for (int line = at.first; line >= 0; --line) {
    const std::size_t end = line == at.first ? static_cast<std::size_t>(at.second) : std::string_view::npos;
    const std::size_t found = line_text(line).substr(0, end).rfind(word);
    if (found != std::string_view::npos) return {line, static_cast<int>(found)};
  }
  return at;
}

void TextErrors::raise() const {
  if (empty()) return;
  std::vector<std::string> lines;
  for (const auto& [at, message] : errors_) {
    lines.push_back(str(filename_, ":", at.first + 1, ":", at.second + 1, ": ", message));
  }
  throw InvalidInput(join(lines, "\n"));
}

int TextErrors::take_skippable_line() { return std::exchange(skippable_line_, -1); }

TextErrors::Place TextErrors::place(int line, int parser_column) const {
  // As protobuf's tokenizer counts columns.
  constexpr int kTabWidth = 8;
  const std::string_view text = line_text(line);
  int column = 0, bytes = 0;
  for (; static_cast<std::size_t>(bytes) < text.size() && column < parser_column; ++bytes) {
    column += text[static_cast<std::size_t>(bytes)] == '\t' ? kTabWidth - column % kTabWidth : 1;
  }
  return {std::max(line, 0), bytes};
}

std::string_view TextErrors::line_text(int line) const {
  return line >= 0 && static_cast<std::size_t>(line) < lines_.size() ? lines_[static_cast<std::size_t>(line)]
                                                                     : std::string_view();
}

}  // namespace cp
