// The errors of what goes on between processes. Each is a cp::Error (shared/base/error.h).
#pragma once

#include "shared/base/error.h"

namespace cp::runtime {

using cp::PeerLost;                                      // a connection broke, or the job has failed
using cp::Timeout;                                       // a peer did not answer in time
using RendezvousError = ErrorOf<ErrorKind::rendezvous>;  // ranks cannot find one another, or may not join
using AuthenticationError = ErrorOf<ErrorKind::authentication>;  // a token or a seal is wrong
using AddressInUse = ErrorOf<ErrorKind::address_in_use>;         // the server cannot listen there

}  // namespace cp::runtime
