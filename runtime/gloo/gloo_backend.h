// The gloo back end: processes on CPUs, which connect with one another through the job's rendezvous server.
#pragma once

#include "runtime/backend.h"

namespace cp::runtime {

Backend gloo_backend();

}  // namespace cp::runtime
