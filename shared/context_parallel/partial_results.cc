#include "shared/context_parallel/partial_results.h"

#include <utility>

#include "shared/base/text.h"
#include "shared/context_parallel/partial_sum.h"

namespace cp::detail {

// ---- partial outputs ----

PartialOutputs::PartialOutputs(AttentionWriter& writer, const Tensor& out, const RowStatistic& lse, int parts)
    : writer_(writer), out_(out), sum_(out), lse_(lse) {
  if (writer.is_fused()) {
    parts_ = std::make_unique<PartialSum>(writer, "out", out, &lse, PartialSum::Of::queries, parts);
    if (writer.problem().sinks) parts_->join_sinks();
  } else if (parts > 1 || writer.problem().sinks) {
    sum_ = writer.accumulator("out sum", writer.merge_dtype(), out);
  }
}
PartialOutputs::~PartialOutputs() = default;

void PartialOutputs::add(const Operands& operands, const Masks& masks, const std::string& label) {
  const ForwardOperands all{operands.q, operands.k, operands.v, sum_, lse_};
  if (parts_) return writer_.attend_more(all, masks, label, *parts_);
  empty_ ? writer_.attend(all, masks, label) : writer_.attend_more(all, masks, label);
  empty_ = false;
}

void PartialOutputs::add(const Tensor& out, const RowStatistic& lse, const std::string& label) {
  if (parts_) return parts_->add(out, &lse, label);
  if (!empty_) return writer_.merge(out, lse, sum_, lse_, label);
  writer_.convert(out.view(), sum_.view(), label, AttentionWriter::Of::merge);
  writer_.convert(lse.view(), lse_.view(), label, AttentionWriter::Of::merge);
  empty_ = false;
}

void PartialOutputs::finish() {
  if (parts_) return parts_->finish("out");
  const bool sinks = writer_.problem().sinks;
  if (empty_ && !sinks) return writer_.attend({{}, {}, {}, out_, lse_}, {}, "no keys");
  if (empty_) writer_.attend({{}, {}, {}, sum_, lse_}, {}, "no keys");
  if (sinks && out_.rows > 0) {
    const auto [values, lse] = writer_.sink_part(out_.batch, out_.rows, out_.all_heads(), out_.dim);
    writer_.builder().add(writer_.merging(), AttentionMerge{values, lse, sum_.view(), lse_.view()}, "sinks");
  }
  writer_.finish(sum_, out_, "out");
}

// ---- partial gradients ----

PartialGradient::PartialGradient(AttentionWriter& writer, const std::string& name, const Tensor& gradient,
                                 Of of, int parts)
    : writer_(&writer), gradient_(gradient), sum_(gradient) {
  if (gradient.is_absent()) return;
  if (of == Of::keys ? writer.key_parts_are_fused() : writer.is_fused()) {
    parts_ = std::make_unique<PartialSum>(writer, name, gradient, nullptr, of, parts);
  } else {
    sum_ = writer.accumulator(name + " sum", DType::f32, gradient);
  }
}
PartialGradient::~PartialGradient() = default;
PartialGradient::PartialGradient(PartialGradient&&) noexcept = default;

Gradient PartialGradient::next() {
  if (gradient_.is_absent()) return {};
  return {sum_, std::exchange(begun_, true), parts_.get()};
}

void PartialGradient::add(const Tensor& part, const std::string& label) {
  if (gradient_.is_absent()) return;
  if (parts_) return parts_->add(part, nullptr, label);
  if (!std::exchange(begun_, true)) writer_->fill(sum_, 0, label, AttentionWriter::Of::merge);
  writer_->accumulate(part, sum_, label);
}

void PartialGradient::settle(const std::string& label) {
  if (parts_) parts_->settle(label);
}

void PartialGradient::finish(const std::string& label) {
  if (gradient_.is_absent()) return;
  if (parts_) return parts_->finish(label);
  if (!begun_) writer_->fill(sum_, 0, str("no ", label), AttentionWriter::Of::merge);
  writer_->finish(sum_, gradient_, label);
}

}  // namespace cp::detail
