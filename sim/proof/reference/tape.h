// A tape records a computation on matrices in float64, step by step, and goes back through it for the
// gradients (reverse-mode differentiation). Each operation of operations.h has its formula and that of its
// gradient side by side, so that what is built of them needs no gradient of its own.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "sim/proof/reference/matrix64.h"

namespace cp::sim {

class Tape;

// A matrix on a tape, as cheap to copy as a pointer. It must not outlive its tape.
class Variable {
 public:
  const Matrix64& value() const;
  std::int64_t rows() const { return value().rows; }
  std::int64_t columns() const { return value().columns; }
  // Behind Tape::backward(); zeros where nothing depends on the variable. Operations add to it.
  Matrix64& gradient() const;
  Tape& tape() const { return *tape_; }

 private:
  friend class Tape;
  Variable(Tape* tape, std::size_t number) : tape_(tape), number_(number) {}
  Tape* tape_;
  std::size_t number_;
};

// Every value that a tape records, and every gradient before it is handed on, is multiplied with 1 + relative
// u, u uniform in [-1, 1]: how far results then move says how far roundings of that size may move them, with
// all that the model makes of them (Monte Carlo arithmetic; Parker 1997).
struct Roundings {
  double relative = 0;  // 0: none
  std::uint64_t seed = 0;
};

class Tape {
 public:
  // Of a variable's value and its gradient: adds to the gradients of what it was computed from.
  using Backward = std::function<void(const Matrix64& value, const Matrix64& gradient)>;

  explicit Tape(Roundings roundings = {}) : roundings_(roundings) {}
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  Variable input(Matrix64 value);
  Variable record(Matrix64 value, Backward backward);

  // Computes the gradients of a weighted sum: of each variable, all of whose elements are added up, times its
  // weight. Gradients of an earlier call are gone.
  void backward(const std::vector<std::pair<Variable, double>>& weighted);

 private:
  friend class Variable;
  struct Node {
    Matrix64 value, gradient;
    Backward backward;  // null for inputs
  };
  void round(Matrix64& matrix);

  const Roundings roundings_;
  std::uint64_t rounded_ = 0;  // how many matrices have been
  std::deque<Node> nodes_;
};

inline const Matrix64& Variable::value() const { return tape_->nodes_[number_].value; }
inline Matrix64& Variable::gradient() const { return tape_->nodes_[number_].gradient; }

}  // namespace cp::sim
