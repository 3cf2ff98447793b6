"""Mutation testing: small changes of the core's code, and the tests that detect them.

Two mutation testers were measured on `hetero/planning` (4,584 lines) and `devices/request`. Neither
program fits, but the mutation operators of one do:

- cosmic-ray 8.7 generates 7,341 and 2,933 mutants; six in ten replace one arithmetic operator by
  each of the eleven others, also within annotations such as ``int | None``. It has none that drops
  an argument, an assignment or a statement, it changes the working tree, and it starts pytest once
  for each mutant, which takes 6 s before the first test runs.
- mutmut 3.8 generates 6,654 and 3,002 mutants. Its operators resemble mistakes of people: wrong
  arguments, branches, boundaries and assignments. It leaves out decorated functions such as
  properties, and class bodies, and its program derives a module's name from its path, so it does
  not find that `devices/` is imported through the link `hetero/devices`.

This package therefore applies mutmut's operators and a few of its own (`generation`), chooses the
tests of each mutant by coverage (`selection`), and runs them in forks of one pytest process that
has imported and collected everything (`session`), so that most mutants take less than a second.
"""
