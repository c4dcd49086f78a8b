// Protobuf text (.txtpb) that people write: parsed with all its errors at once.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include "traces/text_errors.h"

namespace cp {

// Where the fields of a message stand in its text.
using TextLocations = google::protobuf::TextFormat::ParseInfoTree;

// What a kind of file demands beyond its fields and types; runs on a message that parsed without an error.
using TextCheck = std::function<void(const TextLocations&, TextErrors&)>;

// Parses the text into the message. Throws one InvalidInput with a line `file:line:column: message` for each
// error, in order of place; lines and columns count from 1 and columns count bytes. An error is: a field or
// enumerator that does not exist (the message names the nearest one that does), a value of the wrong type, a
// field that comes twice, and what `check` adds. What cannot be parsed is skipped to the end of its line, so
// that what follows is reported too; where that is not possible, as after an unclosed brace, it is the last
// error. The message's type must not contain itself; `kind` names the file in words ("scenario").
void read_text(std::string_view text, std::string_view filename, std::string_view kind,
               google::protobuf::Message& message, const TextCheck& check = {});

// The bytes of a file. Throws InvalidInput when it cannot be read.
std::string read_text_file(const std::string& path, std::string_view kind);

}  // namespace cp
