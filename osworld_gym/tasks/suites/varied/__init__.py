"""The suite ``varied``: short tasks on real applications, whose screens vary with the seed."""
