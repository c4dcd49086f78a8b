// Turns errors of Gloo into the project's errors. This is the only place that reads the words of Gloo's
// messages.
#pragma once

#include <string>

#include <gloo/common/error.h>
#include <gloo/common/logging.h>

#include "shared/base/error.h"

namespace cp::runtime {

// Throws Timeout if something did not happen in time, else PeerLost: a connection broke. Both have the facts.
// The message is `what`, followed by Gloo's own.
[[noreturn]] void throw_gloo(const gloo::Exception& error, const std::string& what, ErrorFacts facts);
// The same for a check inside Gloo that failed. Throws PeerLost if the check is one of Gloo's transport.
// Others are defects, and are thrown again as they are; so call it only inside the handler that caught the
// error.
[[noreturn]] void throw_gloo(const gloo::EnforceNotMet& error, const std::string& what, ErrorFacts facts);

}  // namespace cp::runtime
