// cprun profile: measures kernels and collectives on the machines at hand, and writes a cluster file and a
// software profile that the timeline engine reads.
#pragma once

#include <string>
#include <vector>

#include "cli/cprun/profile/profile_points.h"
#include "runtime/job_environment.h"

namespace cp::cli {

struct ProfileOptions {
  // The cluster file to write. The table (.csv) and the software profile (.software.txtpb) get the same name.
  std::string out = "profile.txtpb";
  // A preset or a file that gives the figures that are not measured. Empty: the preset that has the GPU.
  std::string cluster;
  ProfileSize grid = ProfileSize::whole;
  // How long matrix products run before the sustained clock is read, in s. 0: it is not read. Chosen, not
  // measured: the clocks of a GPU sink as it warms up.
  double clock_seconds = 30;
};

ProfileSize parse_profile_size(const std::string& text);  // throws InvalidInput that lists the sizes

// Throws InvalidInput if a file cannot be written or the cluster cannot be read. Call it before anything
// runs.
void check(const ProfileOptions& options);

// The arguments with which the launcher starts its ranks; they follow the program's name.
std::vector<std::string> profile_arguments(const ProfileOptions& options);

// Runs one rank of the profile, and returns the exit code. Rank 0 prints and writes the files. After SIGINT
// or SIGTERM on any rank, all ranks finish the point that is being measured, and what was measured so far is
// written.
int run_profile_rank(const ProfileOptions& options, const runtime::JobEnvironment& job);

}  // namespace cp::cli
