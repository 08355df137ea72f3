#include "launcher/output.h"

#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <string_view>
#include <unistd.h>

namespace hasten {
namespace {

using launcher::LineForwarder;
using launcher::MarkedOutput;
using launcher::open_pipe;
using launcher::Pipe;
using testing::ElementsAre;

/// Two ranks that write through forwarders into one output, which is the start of a pipe.
class Output : public testing::Test {
 protected:
  /// Rank `rank` writes `text`, and the launcher looks at once.
  void write(int rank, std::string_view text) {
    ASSERT_EQ(::write(sources_[rank].write.get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
    forwarders_[rank].pump();
  }

  /// What came out since the last call.
  std::string shown() {
    std::string text;
    char buffer[4096];
    set_non_blocking(sink_.read);
    for (ssize_t size = 0; (size = ::read(sink_.read.get(), buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<std::size_t>(size));
    }
    return text;
  }

  Pipe sink_ = open_pipe();
  int times_broken_ = 0;
  MarkedOutput output_{sink_.write.get(), [this] { ++times_broken_; }};
  Pipe sources_[2] = {open_pipe(), open_pipe()};
  LineForwarder forwarders_[2] = {{std::move(sources_[0].read), 0, output_},
                                  {std::move(sources_[1].read), 1, output_}};
};

TEST_F(Output, HoldsTheStartOfALineBackUntilItsEnd) {
  write(0, "a");
  write(1, "x");
  EXPECT_EQ(shown(), "");
  EXPECT_TRUE(forwarders_[0].holds_back());
  write(0, "b\nc");
  write(1, "y\n");
  EXPECT_EQ(shown(), "[0] ab\n[1] xy\n");
}

TEST_F(Output, GoesOnInTheLineWhoseStartWasShown) {
  write(0, "working");
  forwarders_[0].flush();
  EXPECT_EQ(shown(), "[0] working");
  write(0, " done\n");
  EXPECT_EQ(shown(), " done\n");
}

TEST_F(Output, EndsAnUnfinishedLineBeforeAnotherRanksLine) {
  write(0, "half");
  forwarders_[0].flush();
  write(1, "whole\n");
  write(0, " rest\n");
  EXPECT_EQ(shown(), "[0] half\n[1] whole\n[0]  rest\n");
}

TEST_F(Output, EndsTheLastLine) {
  write(1, "no end");
  sources_[1].write.reset();
  forwarders_[1].pump();
  EXPECT_FALSE(forwarders_[1].open());
  output_.finish();
  output_.finish();
  EXPECT_EQ(shown(), "[1] no end\n");
}

TEST_F(Output, MarksEmptyLinesAndSeveralAtOnce) {
  write(1, "a\n\nb\n");
  EXPECT_EQ(shown(), "[1] a\n[1] \n[1] b\n");
}

TEST_F(Output, RemembersTheLastLinesWhole) {
  write(0, "one\ntw");
  forwarders_[0].flush();
  write(0, "o\nthree");
  forwarders_[0].flush();
  EXPECT_THAT(forwarders_[0].last_lines(), ElementsAre("one", "two", "three"));
}

TEST_F(Output, BoundsWhatItRemembers) {
  for (int i = 0; i < 1000; ++i) write(0, "line\n");
  write(0, std::string(10000, 'x') + "\n");
  EXPECT_EQ(forwarders_[0].last_lines().size(), 20U);
  EXPECT_EQ(forwarders_[0].last_lines().back(), std::string(2000, 'x'));
}

TEST_F(Output, SaysOnceThatNobodyReads) {
  auto* before = std::signal(SIGPIPE, SIG_IGN);
  sink_.read.reset();
  write(0, "lost\n");
  write(1, "lost\n");
  output_.finish();
  std::signal(SIGPIPE, before);
  EXPECT_EQ(times_broken_, 1);
}

}  // namespace
}  // namespace hasten
