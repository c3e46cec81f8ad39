#include "core/draft_gate.h"

#include <algorithm>
#include <cmath>

namespace adaspark::core {

namespace {
constexpr double kMemory = 24.0;      // rounds the means remember while drafting
constexpr double kFamiliar = 3.0;     // rounds of a bin before its means are trusted
constexpr double kCarried = 4.0;      // rounds that other requests count for
constexpr double kProbeShare = 0.005; // of the tokens decoded: what probes may cost
constexpr double kMostCredit = 2.0;   // tokens that probes may cost at once
constexpr double kLongest = 1024.0;   // rounds between probes at most
constexpr double kCalibrationKeep = 0.99;
constexpr double kCalibrationRidge = 8.0; // accepted nodes, toward a factor of 1
} // namespace

void DraftGate::begin_request() noexcept {
    for (DraftAdvantage & b : bin_) {
        b.weight = std::min(b.weight, kCarried);
        b.interval = std::min<uint32_t>(b.interval, 16);
        b.idle = 0;
    }
    probing_ = false;
}

bool DraftGate::decide(const GateInput & in) noexcept {
    DraftAdvantage & b = bin_[in.bin];
    probing_ = false;
    credit_ = std::min(credit_ + kProbeShare * in.tokens, kMostCredit);
    if (in.optimistic <= 0.0) {
        return false;
    }
    if (b.weight < kFamiliar ? hopeful(in) : wins(b, in)) {
        return true;
    }
    b.idle += 1;
    probing_ = b.idle >= b.interval && credit_ > 0.0;
    return probing_;
}

bool DraftGate::wins(const DraftAdvantage & b, const GateInput & in) noexcept {
    return b.tokens - in.rate * in.clock * b.time > 0.0;
}

bool DraftGate::hopeful(const GateInput & in) const noexcept {
    bool none = true;
    for (const DraftAdvantage & b : bin_) {
        if (b.weight >= kFamiliar) {
            if (wins(b, in)) {
                return true;
            }
            none = false;
        }
    }
    return none;
}

void DraftGate::drafted(const GateInput & in, double tokens, double time) noexcept {
    DraftAdvantage & b = bin_[in.bin];
    const double calibration = (realised_ + kCalibrationRidge) / (predicted_ + kCalibrationRidge);
    const double more = 1.0 + calibration * (tokens - 1.0) - in.tokens;
    const double longer = time - in.time;
    // After an idle stretch a probe weighs more: the means are of another stretch of text.
    const double kept = b.idle > 8 ? std::min(b.weight, 3.0) : b.weight;
    b.weight = std::min(kept + 1.0, kMemory);
    b.tokens += (more - b.tokens) / b.weight;
    b.time += (longer / in.clock - b.time) / b.weight;
    b.idle = 0;
    const double gain = more - in.rate * longer;
    if (gain > 0.0) {
        b.interval = 1; // a surprise: look again at once
        return;
    }
    credit_ += probing_ ? gain : 0.0;
    const double affordable = -gain / (kProbeShare * std::max(in.tokens, 1.0));
    b.interval = static_cast<uint32_t>(std::clamp(std::min(2.0 * b.interval + 2.0, affordable), 1.0, kLongest));
}

bool DraftGate::pay(double tokens) noexcept {
    if (tokens > credit_) {
        return false;
    }
    credit_ -= std::max(tokens, 0.0);
    return true;
}

void DraftGate::outcome(double predicted, double realised) noexcept {
    predicted_ = predicted_ * kCalibrationKeep + predicted;
    realised_ = realised_ * kCalibrationKeep + realised;
}

} // namespace adaspark::core
