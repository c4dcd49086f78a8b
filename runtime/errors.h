// What can go wrong between processes.
#pragma once

#include "shared/base/error.h"

namespace cp::runtime {

using Timeout = ErrorOf<ExitCode::timeout>;             // a peer did not answer in time
using PeerLost = ErrorOf<ExitCode::peer_lost>;          // a connection broke
using RendezvousError = ErrorOf<ExitCode::rendezvous>;  // ranks cannot find one another, or may not join
using AuthenticationError = ErrorOf<ExitCode::authentication>;  // a token or a seal is wrong
using AddressInUse = ErrorOf<ExitCode::address_in_use>;

}  // namespace cp::runtime
