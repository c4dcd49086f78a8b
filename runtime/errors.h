// What can go wrong between processes.
#pragma once

#include "shared/base/error.h"

namespace cp::runtime {

using Timeout = ErrorOf<ExitCode::timeout>;     // a peer did not answer in time
using PeerLost = ErrorOf<ExitCode::peer_lost>;  // a connection broke

}  // namespace cp::runtime
