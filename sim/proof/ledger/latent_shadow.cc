#include "sim/proof/ledger/latent_shadow.h"

#include <utility>

#include "shared/base/index.h"
#include "shared/base/text.h"

namespace cp::sim {

template <class... Parts>
void LatentShadow::find(const Parts&... parts) {
  if (!std::exchange(complained_, true))
    world_.findings.add([&] { return str(names_.text(step_), ": ", parts...); });
}

Tag LatentShadow::at(const View& matrix, std::int64_t row, std::int64_t column) const {
  const std::int64_t element =
      offset_at(matrix, iteration_) + row * matrix.strides[0] + column * matrix.strides[1];
  Tag tag = std::as_const(world_.memory).tags(plan_, matrix.buffer)[idx(element / granule(matrix))];
  if (is_element(tag)) tag.id += static_cast<std::uint64_t>(element % granule(matrix));
  return tag;
}

void LatentShadow::put(const View& matrix, std::int64_t row, std::int64_t column, Tag tag, bool accumulate) {
  const std::int64_t element =
      offset_at(matrix, iteration_) + row * matrix.strides[0] + column * matrix.strides[1];
  Tag& old = world_.memory.tags(plan_, matrix.buffer)[idx(element / granule(matrix))];
  if (accumulate && is_element(tag) && is_element(old)) {
    if (old.id != tag.id) find("adds ", world_.space.text(tag), " to ", world_.space.text(old));
    tag = {old.id, old.cells + tag.cells, old.print + tag.print};
  } else if (accumulate && is_element(old)) {
    tag = old;
  }
  old = tag;
}

std::vector<LatentShadow::UpRow> LatentShadow::weight_rows(const View& matrix, bool transposed) {
  std::vector<UpRow> rows;
  const std::int64_t count = matrix.shape[transposed ? 1 : 0], rank = matrix.shape[transposed ? 0 : 1];
  if (rank != world_.problem.latent.rank)
    find("takes ", rank, " columns of kv_up of ", world_.problem.latent.rank);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto tag = [&](std::int64_t column) {
      return transposed ? at(matrix, column, i) : at(matrix, i, column);
    };
    const Tag first = tag(0);
    UpRow& row = rows.emplace_back();
    if (world_.space.row_number(Tensor::kv_up, first) < 0) {
      find("takes ", world_.space.text(first), " for a row of kv_up");
      continue;
    }
    const Element element = world_.space.element(first.id);
    row = {element.head, element.row};
    for (std::int64_t column = granule(matrix); column < rank; column += granule(matrix)) {
      if (tag(column).id != first.id + static_cast<std::uint64_t>(column))
        find("a row of kv_up goes on with ", world_.space.text(tag(column)));
    }
  }
  return rows;
}

Element LatentShadow::latent_row(const View& matrix, std::int64_t row) {
  const Tag first = at(matrix, row, 0);
  if (world_.space.row_number(Tensor::latent, first) < 0) {
    find("takes ", world_.space.text(first), " for a latent row");
    return {};
  }
  for (std::int64_t column = granule(matrix); column < matrix.shape[1]; column += granule(matrix)) {
    if (at(matrix, row, column).id != first.id + static_cast<std::uint64_t>(column))
      find("a latent row goes on with ", world_.space.text(at(matrix, row, column)));
  }
  return world_.space.element(first.id);
}

// That columns which one granule has are rows of the weight that follow one another.
void LatentShadow::require_runs(const std::vector<UpRow>& ups, std::int64_t granule) {
  for (std::size_t x = 0; x < ups.size(); ++x) {
    const auto within = static_cast<std::int64_t>(x) % granule;
    const UpRow& first = ups[x - idx(within)];
    if (ups[x] != UpRow{first.head, first.row + within})
      return find("takes row ", ups[x].row, " of head ", ups[x].head, " of kv_up behind row ", first.row,
                  " of head ", first.head);
  }
}

std::uint64_t LatentShadow::made_of(const UpRow& up, const Element& row, bool gradient) const {
  const std::int64_t nope = world_.problem.nope_dim();
  const bool of_key = up.row < nope;
  const Tensor tensor = of_key ? (gradient ? Tensor::dk : Tensor::k) : (gradient ? Tensor::dv : Tensor::v);
  return world_.space.id(tensor, row.batch, up.head, row.row, of_key ? up.row : up.row - nope);
}

void LatentShadow::run(const MatMul& op, std::size_t plan, std::int64_t iteration, std::int32_t step) {
  plan_ = plan, iteration_ = iteration, step_ = step, complained_ = false;
  if (!world_.problem.has_latent()) return find("a product that is no part of attention");
  if (op.a.numel() == 0 || op.b.numel() == 0) return;
  const auto is_of = [&](const Tag& tag, Tensor tensor) {
    return is_element(tag) && world_.space.tensor(tag.id) == tensor;
  };
  const Tag a = at(op.a, 0, 0), b = at(op.b, 0, 0);
  if (is_of(b, Tensor::latent)) return contract_weight(op);
  if (!is_of(b, Tensor::kv_up)) return find("a product by ", world_.space.text(b));
  is_of(a, Tensor::latent) ? expand(op) : contract(op);
}

void LatentShadow::expand(const MatMul& op) {
  const std::vector<UpRow> ups = weight_rows(op.b, true);
  require_runs(ups, granule(op.out));
  if (op.accumulate) find("adds to keys and values, which no step of attention does");
  for (std::int64_t i = 0; i < op.a.shape[0] && !complained_; ++i) {
    const Element row = latent_row(op.a, i);
    for (std::size_t x = 0; x < ups.size() && !complained_; x += idx(granule(op.out)))
      put(op.out, i, static_cast<std::int64_t>(x), {made_of(ups[x], row, false), 0, 0}, false);
  }
}

void LatentShadow::contract(const MatMul& op) {
  const std::vector<UpRow> ups = weight_rows(op.b, false);
  require_runs(ups, granule(op.a));
  for (std::int64_t i = 0; i < op.a.shape[0] && !complained_; ++i) {
    Element row;
    bool any = false;
    Cells sum, of_head;
    for (std::size_t x = 0; x < ups.size(); x += idx(granule(op.a))) {
      const bool begins = x == 0 || ups[x].head != ups[x - 1].head;
      const Tag tag = at(op.a, i, static_cast<std::int64_t>(x));
      if (begins) of_head = cells_of(tag), sum += of_head;
      if (cells_of(tag) != of_head)
        find("parts of one head's gradients are made of ", of_head.count, " and ", tag.cells, " pairs");
      if (tag.id == kZeros) continue;
      if (!is_element(tag)) return find("contracts ", world_.space.text(tag));
      const Element element = world_.space.element(tag.id);
      if (!std::exchange(any, true)) row = element;
      if (element.batch != row.batch || element.row != row.row || tag.id != made_of(ups[x], element, true)) {
        return find("contracts ", world_.space.text(tag), " with row ", ups[x].row, " of head ", ups[x].head,
                    " of kv_up", element.row == row.row ? "" : " beside another row");
      }
    }
    for (std::int64_t c = 0; c < op.out.shape[1]; c += granule(op.out)) {
      const Tag tag =
          any ? Tag{world_.space.id(Tensor::dlatent, row.batch, 0, row.row, c), sum.count, sum.print}
              : Tag{kZeros, 0, 0};
      put(op.out, i, c, tag, op.accumulate);
    }
  }
}

void LatentShadow::contract_weight(const MatMul& op) {
  const std::int64_t columns = op.a.shape[0], rows = op.a.shape[1];
  std::vector<Element> latent;
  for (std::int64_t i = 0; i < rows; ++i) latent.push_back(latent_row(op.b, i));
  if (op.b.shape[1] != world_.problem.latent.rank) find("takes ", op.b.shape[1], " columns of latent rows");
  for (std::int64_t x = 0; x < columns && !complained_; x += granule(op.a)) {
    UpRow up;
    Cells sum;
    for (std::int64_t i = 0; i < rows; ++i) {
      const Tag tag = at(op.a, x, i);
      if (tag.id == kZeros) continue;
      const Element element = is_element(tag) ? world_.space.element(tag.id) : Element{};
      const bool of_value = element.tensor == Tensor::dv;
      if (!is_element(tag) || !(of_value || element.tensor == Tensor::dk) ||
          element.batch != latent[idx(i)].batch || element.row != latent[idx(i)].row) {
        return find("multiplies ", world_.space.text(tag), " by the latent row of batch ",
                    latent[idx(i)].batch, ", row ", latent[idx(i)].row);
      }
      const UpRow here{element.head, element.column + (of_value ? world_.problem.nope_dim() : 0)};
      if (up.head >= 0 && here != up) return find("adds up ", world_.space.text(tag), " with another row");
      up = here;
      sum += world_.weights.of_dkv_up(element.row, cells_of(tag));
    }
    for (std::int64_t within = 0; within < granule(op.a); ++within) {
      for (std::int64_t c = 0; c < op.out.shape[1]; c += granule(op.out)) {
        Tag tag{kZeros, 0, 0};
        if (up.head >= 0)
          tag = {world_.space.id(Tensor::dkv_up, 0, up.head, up.row + within, c), sum.count, sum.print};
        put(op.out, x + within, c, tag, op.accumulate);
      }
    }
  }
}

}  // namespace cp::sim
