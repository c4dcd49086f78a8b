// Cases of cpsim fuzz as files: protobuf text (.txtpb) that people read and change. fuzz_case.proto has the
// fields.
#pragma once

#include <string>
#include <string_view>

#include "shared/base/digest.h"
#include "traces/fuzz_case.pb.h"

namespace cp {

// Parses the text. Throws one InvalidInput with a line `file:line:column: message` for each error, as
// read_text does; a case that asks for nothing is one too.
proto::FuzzCase read_case_text(std::string_view text, std::string_view filename);

// The same for a file; also throws InvalidInput when it cannot be read.
proto::FuzzCase read_case_file(const std::string& path);

// The text of a case file, with every field that is set; reading it gives the same case. What was found comes
// first, as a comment too.
std::string write_case_text(const proto::FuzzCase& fuzz_case);

// Of the case without what was found: names its file.
Digest digest(const proto::FuzzCase& fuzz_case);

}  // namespace cp
