// cprun profile: measures kernels and collectives on the machine at hand, and writes a cluster and a software
// profile that the timeline engine reads.
#pragma once

#include <string>
#include <vector>

#include "cli/cprun/profile/profile_points.h"
#include "runtime/job_environment.h"

namespace cp::cli {

struct ProfileOptions {
  std::string out = "profile.txtpb";  // and profile.csv and profile.software.txtpb beside it
  std::string cluster;                // what was not measured; empty: the preset that has the GPU
  ProfileSize grid = ProfileSize::whole;
  double clock_seconds = 30;  // of products before the sustained clock is read; 0: it is not
};

ProfileSize parse_profile_size(const std::string& text);  // throws InvalidInput that lists them

// Throws InvalidInput for what cannot be written, or read, before anything runs.
void check(const ProfileOptions& options);

// What the launcher starts its ranks with, behind the program's name.
std::vector<std::string> profile_arguments(const ProfileOptions& options);

// One rank of it; returns the exit code. Rank 0 tells and writes. After SIGINT or SIGTERM on any rank the
// point that is being measured is the last.
int run_profile_rank(const ProfileOptions& options, const runtime::JobEnvironment& job);

}  // namespace cp::cli
