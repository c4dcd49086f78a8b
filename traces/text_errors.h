// Reports the errors of a protobuf text file the way people need them: all of them, each at its place, with
// the nearest thing that works.
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

// The names of an enumeration that people may write: all but the one that means "not set".
std::vector<std::string_view> enumerators(const google::protobuf::EnumDescriptor& type);

// Collects what the parser reports about one text. The parser is told to go on behind unknown fields and then
// calls them warnings; here everything is an error.
class TextErrors : public google::protobuf::io::ErrorCollector {
 public:
  // `root` is the type of the message that the text describes. Text and type must outlive this object.
  TextErrors(std::string_view text, std::string_view filename, const google::protobuf::Descriptor& root);

  // Called by the parser. Lines and columns count from 0, and columns jump to multiples of 8 at tabs.
  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override;
  void AddWarning(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override;

  // Adds an error at a place that the parser recorded. A default-constructed place is the beginning of the
  // file.
  void add(google::protobuf::TextFormat::ParseLocation at, std::string message);

  bool empty() const { return errors_.empty(); }
  // Throws InvalidInput with a line for each error, in order of place. Returns if there is none.
  void raise() const;

  // The line (from 0) at which parsing has stopped since the last call, if the field that it stopped at
  // begins and ends on this line: parsing can go on without it. -1 otherwise.
  int take_skippable_line();

 private:
  using Place = std::pair<int, int>;  // line, column in bytes; both from 0

  Place place(int line, int parser_column) const;
  std::string_view line_text(int line) const;
  // The place of the last `word` before `at`. The parser reports a word only when it has reached the token
  // behind it.
  Place word_before(Place at, std::string_view word) const;
  void insert(Place at, std::string message);

  std::vector<std::string_view> lines_;
  std::string filename_;
  const google::protobuf::Descriptor& root_;
  std::map<Place, std::string> errors_;
  std::map<int, Place> stops_;  // by line: where parsing stopped there
  int skippable_line_ = -1;
};

}  // namespace cp
