#include "sim/planner/search/layout_timeline.h"

#include <algorithm>
#include <map>
#include <string>

#include "shared/base/text.h"
#include "shared/base/units.h"
#include "shared/plan/host_place.h"
#include "shared/transformer/group_axis.h"
#include "sim/planner/search/evaluate.h"

namespace cp::sim {
namespace {

SpanKind step_kind(const Step& step, const Plan& plan) {
  if (const auto* collective = std::get_if<Collective>(&step.work)) {
    return span_kind(axis_of_group(plan.groups[static_cast<std::size_t>(group_of(*collective))].name));
  }
  const Kernel& kernel = std::get<Kernel>(step.work);
  if (std::holds_alternative<AttentionForward>(kernel) || std::holds_alternative<AttentionBackward>(kernel))
    return SpanKind::attention;
  if (place_of(kernel, plan) != KernelPlace::gpu) return SpanKind::offload;
  return std::holds_alternative<MatMul>(kernel) ? SpanKind::product : SpanKind::kernel;
}

// Appends what the plan's rank does, from `begin_us` on; returns when it ends.
double add_spans(const Plan& plan, const PlanQuestion& question, int stage, double begin_us,
                 std::vector<ReportSpan>& spans) {
  RankReplayOptions options;
  options.keep_spans = true;
  const StepClock clock = replay_rank(plan, question.cluster, question.software, options);
  const std::vector<StepRef> steps = steps_of(plan);
  for (const Span& span : clock.spans) {
    const StepRef& ref = steps[static_cast<std::size_t>(span.step)];
    std::string label =
        ref.step->label.empty() ? std::string(operation_name(ref.step->work)) : ref.step->label;
    if (ref.count > 1) label += str(" [", span.iteration + 1, " of ", ref.count, "]");
    spans.push_back({stage, plan.streams[static_cast<std::size_t>(ref.step->stream)], std::move(label),
                     step_kind(*ref.step, plan), begin_us + span.begin_ns / kNsPerUs,
                     begin_us + span.end_ns / kNsPerUs});
  }
  return begin_us + clock.time_ns / kNsPerUs;
}

std::vector<ReportSpan> schedule_spans(const PipelineTimes& times) {
  std::vector<ReportSpan> spans;
  for (std::size_t rank = 0; rank < times.chunks.size(); ++rank) {
    for (const PipelineChunk& chunk : times.chunks[rank]) {
      spans.push_back({static_cast<int>(rank), "schedule",
                       str("stage ", chunk.stage, ", micro-batch ", chunk.micro_batch),
                       chunk.backward ? SpanKind::backward : SpanKind::forward, chunk.begin_ns / kNsPerUs,
                       chunk.end_ns / kNsPerUs});
    }
  }
  return spans;
}

}  // namespace

std::vector<ReportSpan> layout_timeline(const PlanQuestion& question, const ParallelLayout& layout,
                                        std::size_t max_spans) {
  Evaluator evaluator(question);
  std::vector<ReportSpan> spans;
  if (question.workload.phase != Phase::training) {
    const StepPart part = question.workload.phase == Phase::prefill ? StepPart::prefill : StepPart::decode;
    double end_us = 0;
    for (int stage = 0; stage < layout.pp; ++stage)
      end_us = add_spans(evaluator.plan_of(layout, part, stage), question, stage, end_us, spans);
  } else if (layout.pp > 1) {
    spans = schedule_spans(evaluator.schedule(layout));
  } else {
    const double end_us =
        add_spans(evaluator.plan_of(layout, StepPart::micro_batch, 0), question, 0, 0, spans);
    add_spans(evaluator.plan_of(layout, StepPart::update, 0), question, 0, end_us, spans);
  }
  if (spans.size() > max_spans) {
    // The longest ones are what can be seen.
    std::nth_element(spans.begin(), spans.begin() + static_cast<std::ptrdiff_t>(max_spans), spans.end(),
                     [](const ReportSpan& a, const ReportSpan& b) {
                       return a.end_us - a.begin_us > b.end_us - b.begin_us;
                     });
    spans.resize(max_spans);
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const ReportSpan& a, const ReportSpan& b) { return a.begin_us < b.begin_us; });
  return spans;
}

}  // namespace cp::sim
