// The errors of a protobuf text file, as people need them: every one, at its place, with the nearest thing
// that works.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

namespace cp {

// The names that people may write for it: all but the one that means "unset".
std::vector<std::string_view> enumerators(const google::protobuf::EnumDescriptor& type);

// Collects what the parser reports about one text. Unknown fields are warnings to the parser when it is told
// to go on after them; here everything is an error.
class TextErrors : public google::protobuf::io::ErrorCollector {
 public:
  // `root`: the type of the message that the text is of. Text and type must outlive this.
  TextErrors(std::string_view text, std::string_view filename, const google::protobuf::Descriptor& root);

  // Called by the parser; line and column count from 0, and its columns jump to multiples of 8 at tabs.
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override;
  void AddWarning(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override;

  // Adds an error at a place that the parser recorded; the default is the beginning of the file.
  void add(google::protobuf::TextFormat::ParseLocation at, std::string message);

  bool empty() const { return errors_.empty(); }
  // Throws InvalidInput with a line for each error, in order of place; returns when there is none.
  void raise() const;

  // Where parsing stopped since the last call, if the field that it stopped at begins and ends on this line
  // (counting from 0), so that the rest can be parsed without the line; -1 otherwise.
  int take_skippable_line();

 private:
  using Place = std::pair<int, int>;  // line, column in bytes; from 0

  Place place(int line, int parser_column) const;
  std::string_view line_text(int line) const;
  // The place of the last `word` before `at`: the parser reports a word when it is at the token after it.
  Place word_before(Place at, std::string_view word) const;
  void insert(Place at, std::string message);

  std::vector<std::string_view> lines_;
  std::string filename_;
  const google::protobuf::Descriptor& root_;
  std::map<Place, std::string> errors_;
  std::map<int, Place> stops_;  // by line: where parsing stopped
  int skippable_line_ = -1;
};

}  // namespace cp
