// Measures one point of a profile on a device that tells when its steps ran.
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

// Fills the plan's inputs with numbers between -1 and 1. With equal numbers a GPU needs less power and is
// faster, so a measurement would be too good.
void upload_data(PlanSession& session);

class ProfileMeasure {
 public:
  // Returns the texts of all ranks, in the order of ranks. All ranks call it at the same time.
  using AllGather = std::function<std::vector<std::string>(const std::string& own)>;

  // The device must outlive this object.
  ProfileMeasure(runtime::JoinedDevice& device, const ProfileWorld& world, ProfileSize size,
                 AllGather all_gather)
      : device_(device), world_(world), size_(size), all_gather_(std::move(all_gather)) {}

  // Measures the point. All ranks must call it with the same point, and all get the same row: the times of
  // the slowest rank. Returns nothing if no time could be taken, for example if a kernel and a collective did
  // not overlap.
  std::optional<ProfileRow> row(const ProfilePoint& point);

 private:
  using Part = ProfilePlanOptions::Part;

  // Both return when the labelled steps of this rank ran. The first chooses the number of iterations, so that
  // they take about as long as one point may take.
  std::vector<TimedOp> run(const ProfilePoint& point, Part part);
  std::vector<TimedOp> run(const ProfilePoint& point, const ProfilePlanOptions& options);
  RunOptions together() const;
  ProfilePlanOptions first_options() const;
  std::int64_t iterations_for(double iteration_us) const;
  Spread of_slowest(const std::vector<double>& own_us);
  Spread of_slowest(const Spread& own);
  std::optional<ProfileRow> beside(const ProfilePoint& point);
  std::optional<ProfileRow> issue(const IssuePoint& point);
  // Issues the plan's steps several times, and returns what the host took each time, in us.
  std::vector<double> issued_us(const IssuePoint& point, const ProfilePlanOptions& options);

  runtime::JoinedDevice& device_;
  const ProfileWorld world_;
  const ProfileSize size_;
  const AllGather all_gather_;
};

}  // namespace cp::cli
