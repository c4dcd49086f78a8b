#include "sim/accuracy/calibrate/calibrate.h"

#include <cmath>
#include <map>

#include "shared/base/error.h"
#include "shared/base/text.h"
#include "sim/cost/cluster/sourced_text.h"

namespace cp::sim {
namespace {

ErrorSummary errors_of(const std::vector<MeasuredTime>& rows, const Cluster& cluster) {
  std::vector<double> errors;
  for (const MeasuredTime& row : rows)
    errors.push_back(std::abs(row.predict_us(cluster) / row.measured_us - 1));
  return summarize(std::move(errors));
}

}  // namespace

Calibration calibrate(const Cluster& cluster, const std::vector<MeasuredCurve>& curves) {
  Calibration calibration{cluster, {}};
  std::map<std::string, const MeasuredCurve*> taken;
  for (const MeasuredCurve& measured : curves) {
    const std::string field = measured.put(calibration.cluster, measured.curve);
    if (const auto [other, is_new] = taken.emplace(field, &measured); !is_new) {
      throw InvalidInput(str(measured.what, " (", field, ") is measured by ", other->second->file, " and by ",
                             measured.file, "; give one of them"));
    }
    CurveFit fit{field, measured.what, {Origin::measured, measured.file}, 0, {}, {}};
    fit.points = static_cast<int>(measured.curve.points().size());
    fit.before = errors_of(measured.rows, cluster);
    set_source(calibration.cluster.sources, {field, fit.provenance});
    calibration.fits.push_back(std::move(fit));
  }
  sort_by_field(calibration.cluster.sources);
  validate_cluster(calibration.cluster);
  for (std::size_t i = 0; i < curves.size(); ++i)
    calibration.fits[i].after = errors_of(curves[i].rows, calibration.cluster);
  return calibration;
}

}  // namespace cp::sim
