#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <hasten/track/report.h>

#include "track/text.h"

namespace hasten {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Report, IsATableOfAlignedLines) {
  const track::RunReport report{.processes = 2,
                                .device = "cpu",
                                .precision = "bf16",
                                .epochs = 10,
                                .steps = 4690,
                                .samples = 600192,
                                .seconds = 192,
                                .data_seconds = 2.304,
                                .peak_memory = std::int64_t{412} << 20,
                                .resumed_from = "runs/fashion/checkpoint_7",
                                .checkpoint = "runs/fashion/checkpoint_9",
                                .values = {{"loss", 0.302149}, {"accuracy", 0.8912}}};
  EXPECT_EQ(track::format_report(report), R"(-- Training finished ---------------------------
processes         2 x cpu, bf16
epochs            10
steps             4,690 in 3:12  24.43 a second
samples           600,192        3126 a second
waiting for data  1.2 %
peak memory       412 MiB a process
resumed from      runs/fashion/checkpoint_7
checkpoint        runs/fashion/checkpoint_9
accuracy          0.8912
loss              0.3021
------------------------------------------------
)");
}

TEST(Report, LeavesOutWhatIsUnknown) {
  const std::string text = track::format_report({.device = "cuda", .precision = "no", .steps = 3});
  EXPECT_THAT(text, HasSubstr("processes  1 x cuda, fp32\nsteps      3\n---"));
  for (const char* word : {"second", "data", "memory", "checkpoint", "resumed", "epochs", "nan", "inf"})
    EXPECT_THAT(text, Not(HasSubstr(word)));
}

TEST(Report, GrowsWithLongLines) {
  const std::string folder(100, 'x');
  const std::string text = track::format_report({.checkpoint = folder, .values = {{"genauigkeit é\n", 1}}});
  EXPECT_THAT(text, HasSubstr("checkpoint      " + folder));
  EXPECT_THAT(text, HasSubstr("genauigkeit é   1"));
  EXPECT_THAT(text, HasSubstr(std::string(116, '-') + "\n"));
}

TEST(Text, ShowsNumbersAsPeopleReadThem) {
  EXPECT_EQ(track::with_separators(0), "0");
  EXPECT_EQ(track::with_separators(999), "999");
  EXPECT_EQ(track::with_separators(-1234567), "-1,234,567");
  EXPECT_EQ(track::with_separators(-123), "-123");
  EXPECT_EQ(track::short_number(0.123456), "0.1235");
  EXPECT_EQ(track::short_number(1234567.4), "1234567");
  EXPECT_EQ(track::short_number(1e12), "1e+12");
  EXPECT_EQ(track::short_number(-0.0), "-0");
  EXPECT_EQ(track::duration(-1), "0:00");
  EXPECT_EQ(track::duration(7.9), "0:07");
  EXPECT_EQ(track::duration(3600), "1:00:00");
  EXPECT_EQ(track::duration(2 * 86400 + 3 * 3600 + 4), "2d 3:00:04");
  EXPECT_EQ(track::duration(1e300), track::duration(1e12));
  EXPECT_EQ(track::memory_size(512), "512 bytes");
  EXPECT_EQ(track::memory_size(1536), "1.5 KiB");
  EXPECT_EQ(track::memory_size(std::int64_t{300} << 30), "300 GiB");
}

TEST(Text, CountsAndCutsCharactersNotBytes) {
  EXPECT_EQ(track::columns_of("aé█"), 3U);
  EXPECT_EQ(track::first_columns("aé█x", 2), "aé");
  EXPECT_EQ(track::first_columns("aé█x", 3), "aé█");
  EXPECT_EQ(track::first_columns("aé", 9), "aé");
  EXPECT_EQ(track::first_columns("aé", 0), "");
}

}  // namespace
}  // namespace hasten
