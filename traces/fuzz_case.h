// Cases of cpsim fuzz as files: protobuf text (.txtpb) that people read and change. The fields are in
// fuzz_case.proto.
#pragma once

#include <string>
#include <string_view>

#include "shared/base/digest.h"
#include "traces/fuzz_case.pb.h"

namespace cp {

// Parses the text. Throws one InvalidInput for all errors, with a line `file:line:column: message` for each,
// as read_text() does; a case that asks for nothing is an error, too.
proto::FuzzCase read_case_text(std::string_view text, std::string_view filename);

// The same for a file; also throws InvalidInput if it cannot be read.
proto::FuzzCase read_case_file(const std::string& path);

// The text of a case file, with every field that is set; reading it gives the same case. What the case found
// comes first, as a comment, too.
std::string write_case_text(const proto::FuzzCase& fuzz_case);

// The digest of the case without what it found. Its file is named after it.
Digest digest(const proto::FuzzCase& fuzz_case);

}  // namespace cp
