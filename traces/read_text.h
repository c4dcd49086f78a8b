// Reads protobuf text (.txtpb) that people write, and reports all its errors at once.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include "traces/text_errors.h"

namespace cp {

// Says where the fields of a message are in its text.
using TextLocations = google::protobuf::TextFormat::ParseInfoTree;

// A check of what a kind of file demands beyond its fields and types. It runs only on a message that parsed
// without an error, and adds what it finds to the errors.
using TextCheck = std::function<void(const TextLocations&, TextErrors&)>;

// Parses the text into the message. Throws one InvalidInput for all errors, with a line `file:line:column:
// message` for each, in order of place. Lines and columns count from 1, and columns count bytes.
//
// An error is: a field or enumerator that does not exist (the message names the nearest one that does), a
// value of the wrong type, a field that comes twice, or whatever `check` adds. After an error the parser
// skips to the end of the line, so that errors behind it are reported, too. If that is impossible, as after a
// brace that is never closed, it is the last error.
//
// The type of the message must not contain itself. `kind` names the file in words, for example "scenario".
void read_text(std::string_view text, std::string_view filename, std::string_view kind,
               google::protobuf::Message& message, const TextCheck& check = {});

// The bytes of a file. Throws InvalidInput if it cannot be read.
std::string read_text_file(const std::string& path, std::string_view kind);

}  // namespace cp
