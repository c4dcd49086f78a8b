// Jobs one after the other in the same processes, as a program has them that goes on after a failure.
#pragma once

#include <functional>
#include <string>

#include "runtime/job.h"

namespace cp::testing {

// One process of several. The rendezvous server of each job is in the process of rank 0.
class JobAttempts {
 public:
  // `directory` is the same on all ranks, and empty at first.
  JobAttempts(Rank rank, int ranks, std::string directory, std::string backend);

  // Makes a Job of all ranks and calls work(job). Returns when the Job is gone, what `work` threw, if it did:
  // the Job then ended by an exception, and the job has failed.
  std::string attempt(const std::function<void(runtime::Job&)>& work);

 private:
  Rank rank_;
  int ranks_, attempts_ = 0;
  std::string directory_, backend_;
};

}  // namespace cp::testing
