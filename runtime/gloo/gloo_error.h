// Errors of Gloo as the project's: the one place that reads Gloo's words.
#pragma once

#include <string>

#include <gloo/common/error.h>
#include <gloo/common/logging.h>

#include "shared/base/error.h"

namespace cp::runtime {

// Throw Timeout for what did not happen in time, and PeerLost for a connection that broke, both with the
// facts. The message is `what` and Gloo's own.
[[noreturn]] void throw_gloo(const gloo::Exception& error, const std::string& what, ErrorFacts facts);
// A check of Gloo's own that failed: PeerLost where it is one of its transport. Others are defects, and are
// thrown again as they are, so that it is to be called where the error was caught.
[[noreturn]] void throw_gloo(const gloo::EnforceNotMet& error, const std::string& what, ErrorFacts facts);

}  // namespace cp::runtime
