// JobTrace: what a program does on the device of its Job, written down as a trace (cprun --trace FILE --
// ./program). It stands between the program and the device, and records each step that is launched.
//
// A program has plans in several lanes, whose streams have numbers of their own (lanes.h). There are no times
// in the trace, and no digests, since only the program knows which of its results are exact.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/job_environment.h"
#include "shared/plan/forwarding_device.h"
#include "shared/plan/trace.h"
#include "traces/trace_files.h"

namespace cp::runtime {

// Where a rank of the job runs, for its trace. `libraries` are the versions of the back end's libraries, by
// name.
Environment environment_of(const JobEnvironment& job, const std::map<std::string, std::string>& libraries);

class JobTrace : public ForwardingDevice {
 public:
  // Opens the rank's file in job.trace_folder; throws BadTrace if it cannot be written. The device must
  // outlive this object. `libraries` as above.
  JobTrace(Device& device, const JobEnvironment& job, const std::map<std::string, std::string>& libraries);

  void prepare(const Plan& plan, const Bindings& bindings) override;
  PreparedId keep(const Plan& plan, const Bindings& bindings, LaneId lane) override;
  void use(PreparedId prepared, const Bindings& changed) override;
  void release(PreparedId prepared) override;
  void launch(const StepRef& step, std::int64_t iteration) override;

  // Writes all that was issued, and `observed`, which is all that the device observed. `is_whole` says that
  // the program has ended well: only then the file has its end record, without which it counts as cut off.
  // Throws BadTrace if the file cannot be written.
  void write(std::vector<OpRecord> observed, bool is_whole);

 private:
  struct Kept {
    const Plan* plan = nullptr;
    LaneId lane = 0;
  };

  TraceFileWriter file_;
  RankTrace trace_;
  std::map<PreparedId, Kept> kept_;
  Kept used_;
  std::map<std::string, std::int64_t> sequences_;  // collectives so far, by group
};

}  // namespace cp::runtime
