// The gloo back end runs ranks as processes on CPUs. They find one another through the job's rendezvous
// server and move data over TCP.
#pragma once

#include "runtime/backend.h"

namespace cp::runtime {

// In a build without Gloo the back end has no `make`, and `why_not` says what to install
// (no_gloo_backend.cc).
Backend gloo_backend();

}  // namespace cp::runtime
