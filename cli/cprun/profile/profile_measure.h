// Measuring one point of a profile on a device that says when its steps ran.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/cprun/profile/profile_points.h"
#include "cli/cprun/profile/profile_rows.h"
#include "runtime/joined_device.h"
#include "shared/plan/session.h"

namespace cp::cli {

// Fills what the plan reads with numbers between -1 and 1: with equal ones GPUs need less power, and are
// faster.
void upload_data(PlanSession& session);

class ProfileMeasure {
 public:
  // The texts of all ranks, by rank; called by all of them.
  using AllGather = std::function<std::vector<std::string>(const std::string& own)>;

  ProfileMeasure(runtime::JoinedDevice& device, const ProfileWorld& world, ProfileSize size,
                 AllGather all_gather)
      : device_(device), world_(world), size_(size), all_gather_(std::move(all_gather)) {}

  // Called by all ranks; the same on all. Nothing where no time could be taken.
  std::optional<ProfileRow> row(const ProfilePoint& point);

 private:
  using Part = ProfilePlanOptions::Part;

  // When the labelled steps ran, for about as long as one point may take.
  std::vector<TimedOp> run(const ProfilePoint& point, Part part);
  std::vector<TimedOp> run(const ProfilePoint& point, const ProfilePlanOptions& options);
  RunOptions together() const;
  ProfilePlanOptions first_options() const;
  std::int64_t iterations_for(double iteration_us) const;
  Spread of_slowest(const std::vector<double>& own_us);
  Spread of_slowest(const Spread& own);
  std::optional<ProfileRow> beside(const ProfilePoint& point);
  std::optional<ProfileRow> issue(const IssuePoint& point);
  // What the host took for each of several times to issue the plan's steps.
  std::vector<double> issued_us(const IssuePoint& point, const ProfilePlanOptions& options);

  runtime::JoinedDevice& device_;
  const ProfileWorld world_;
  const ProfileSize size_;
  const AllGather all_gather_;
};

}  // namespace cp::cli
